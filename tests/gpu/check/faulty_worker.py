"""A child that breaks the protocol: `python faulty_worker.py MODE CONFIG FD`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

mode, config, fd = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
names = [test["name"] for test in config["tests"]]
nonce = config["nonce"]


def raw(data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def send(kind: str, **values: Any) -> None:
    raw(json.dumps({"kind": kind, **values}).encode() + b"\n")


def hello(**more: Any) -> None:
    send(
        "hello",
        **{
            "nonce": nonce,
            "pid": os.getpid(),
            "sms": 132,
            "compute_capability": [9, 0],
            "kernels": {},
            **more,
        },
    )


def passed(name: str, **more: Any) -> None:
    send("start", test=name)
    send("result", **{"test": name, "state": "done", "errors": 0, "measures": {"coverage": 1.0}, **more})


def all_of_it() -> None:
    hello()
    for name in names:
        passed(name)
    # As long as a real one, so that the watcher reads at least once.
    time.sleep(0.25)
    send("end", nonce=nonce, tests=len(names))


def stubborn() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


if mode == "honest":
    all_of_it()
elif mode == "silent":
    pass  # exits with 0 and no report
elif mode == "exits":
    print("the driver said no", file=sys.stderr)
    sys.exit(7)
elif mode == "half":
    hello()
    passed(names[0])
elif mode == "truncated":
    hello()
    passed(names[0])
    raw(b'{"kind":"end","nonce":"' + nonce.encode() + b'","tests":1}')
elif mode == "no_json":
    hello()
    raw(b"Segmentation fault\n")
    time.sleep(30)
elif mode == "no_object":
    raw(b"[1, 2]\n")
    time.sleep(30)
elif mode == "wrong_nonce":
    nonce = "0" * 32
    all_of_it()
elif mode == "nonce_at_end":
    hello()
    for name in names:
        passed(name)
    send("end", nonce="0" * 32, tests=len(names))
elif mode == "no_nonce":
    hello()
    for name in names:
        passed(name)
    send("end", tests=len(names))
elif mode == "no_greeting":
    passed(names[0])
    time.sleep(30)
elif mode == "twice_hello":
    hello()
    hello()
    time.sleep(30)
elif mode == "end_early":
    hello()
    send("end", nonce=nonce, tests=0)
    time.sleep(0.5)
elif mode == "miscounted":
    hello()
    passed(names[0])
    send("end", nonce=nonce, tests=2)
    time.sleep(0.5)
elif mode == "out_of_turn":
    hello()
    passed("another")
    time.sleep(30)
elif mode == "other_result":
    hello()
    send("start", test=names[0])
    send("result", test="another", state="done", errors=0)
    time.sleep(30)
elif mode == "nan":
    hello()
    send("start", test=names[0])
    raw(b'{"kind":"result","test":"address","state":"done","errors":0,"measures":{"coverage":NaN}}\n')
    time.sleep(30)
elif mode == "claims_hung":
    hello()
    passed(names[0], state="hung")
    time.sleep(30)
elif mode == "wrong_answer":
    hello()
    passed(names[0], errors=3)
    send("end", nonce=nonce, tests=1)
elif mode == "flood":
    hello()
    while True:
        send("beat", test="x", text="y" * 1000)
elif mode == "long_line":
    raw(b'{"kind":"' + b"x" * 200_000)
    time.sleep(30)
elif mode == "noise":
    # Libraries may print to the standard streams.
    print("x" * 3_000_000)
    print("y" * 3_000_000, file=sys.stderr)
    all_of_it()
elif mode == "slow":
    hello()
    send("start", test=names[0])
    time.sleep(0.4)
    send("result", test=names[0], state="done", errors=0, measures={"coverage": 1.0})
    send("end", nonce=nonce, tests=1)
elif mode == "hangs":
    stubborn()
    hello()
    send("start", test=names[0])
    while True:
        send("beat", test=names[0], done=1, of=0)
        time.sleep(0.1)
elif mode == "hangs_between":
    stubborn()
    hello()
    time.sleep(60)
elif mode == "hangs_at_start":
    stubborn()
    time.sleep(60)
elif mode == "hangs_at_exit":
    stubborn()
    all_of_it()
    time.sleep(60)
elif mode == "killed":
    hello()
    send("start", test=names[0])
    os.kill(os.getpid(), signal.SIGKILL)
elif mode == "forks":
    # A helper that outlives its parent, in the same session.
    if os.fork() == 0:
        stubborn()
        with open(os.path.join(os.environ["TMPDIR"], "helper"), "w") as file:  # noqa: PTH118, PTH123
            file.write(str(os.getpid()))
        time.sleep(60)
    time.sleep(0.2)
    all_of_it()
elif mode == "environment":
    hello(kernels=dict.fromkeys(sorted(os.environ), "x"), blas=",".join(sorted(os.environ)))
    for name in names:
        passed(name)
    time.sleep(0.25)
    send("end", nonce=nonce, tests=len(names))
else:
    sys.exit(f"no mode {mode}")
