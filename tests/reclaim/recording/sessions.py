"""The recorded sessions: each a real program, its actions and the expected verdict."""

from __future__ import annotations

from dataclasses import dataclass

from tests.reclaim.recording import acts, traffic
from tests.reclaim.recording.acts import (
    cell,
    closed_terminal,
    marimo_cell,
    marimo_terminal,
    terminal,
    vscode_terminal,
)
from tests.reclaim.recording.session import FALSELY_KEPT, KEPT, STOPPED, WAITS, Session

DATA_LOADING = (
    "import hashlib, multiprocessing as mp, time\n"
    "def load(n):\n    while True:\n        hashlib.sha256(bytes(200_000)).digest(); time.sleep(0.002)\n"
    "ps = [mp.Process(target=load, args=(i,), daemon=True) for i in range(2)]\n"
    "[p.start() for p in ps]; [p.join() for p in ps]"
)
POOL = "import multiprocessing as mp; pool = mp.Pool(3); pool.map(abs, range(3))"
THREAD = (
    "import threading, time\ndef train():\n    while True:\n        time.sleep(0.5)\n"
    "threading.Thread(target=train, daemon=True).start()"
)
SMALL_STEPS = "x = sum(range(20_000))"
WORKING_THREAD = (
    "import threading, time\ndef work():\n    while True:\n        " + SMALL_STEPS + "; time.sleep(0.05)\n"
    "threading.Thread(target=work, daemon=True).start()"
)
WORKING_TASK = (
    "import asyncio\nasync def work():\n    while True:\n        "
    + SMALL_STEPS
    + "; await asyncio.sleep(0.05)\n"
    "task = asyncio.create_task(work())"
)
DOWNLOAD = (
    "import threading, time\ndef load():\n    with open('part', 'wb') as file:\n        while True:\n"
    "            file.write(bytes(5_000)); file.flush(); time.sleep(1)\n"
    "threading.Thread(target=load, daemon=True).start()"
)
WAIT = "import time; time.sleep(9999)"
AWAIT = "import asyncio; await asyncio.sleep(9999)"
PDB = "import pdb\npdb.set_trace()\nx = 1\ny = 2"
POPEN = "import subprocess; job = subprocess.Popen(['sleep', '9999'])"
NOHUP = "nohup sleep 9999 >/dev/null 2>&1 &"
TRAIN = "python3 -c 'import time; time.sleep(9999)'"
UNUSED_SERVER = (
    "python3 -c 'import tornado.ioloop as i, tornado.web as w; w.Application().listen(8899); "
    "i.PeriodicCallback(lambda: sum(range(5000)), 50).start(); i.IOLoop.current().start()'"
)
COMPUTE = "import hashlib, time\nwhile True:\n    hashlib.sha256(bytes(200_000)).digest(); time.sleep(0.001)"
JUPYTER = (
    Session(
        "jupyter-nobody-came",
        "jupyterlab",
        "It was started, and nobody has opened it.",
        STOPPED,
        acts.nothing,
    ),
    Session(
        "jupyter-open-tab",
        "jupyterlab",
        "JupyterLab is open in a tab.",
        STOPPED,
        acts.only_a_tab,
        browser=True,
    ),
    Session(
        "jupyter-quiet-kernel", "jupyterlab", "A cell has run; its kernel waits.", STOPPED, cell("1 + 1")
    ),
    Session(
        "jupyter-idle-pool", "jupyterlab", "A pool of workers waits beside a kernel.", STOPPED, cell(POOL)
    ),
    Session(
        "jupyter-kernel-died",
        "jupyterlab",
        "A cell has killed its kernel.",
        STOPPED,
        cell("import os; os._exit(1)"),
    ),
    Session(
        "jupyter-debugger-was-left",
        "jupyterlab",
        "The debugger was detached; the kernel waits.",
        STOPPED,
        acts.debugger_was_left,
    ),
    Session(
        "jupyter-training",
        "jupyterlab",
        "A cell trains on the GPU for hours and prints nothing.",
        KEPT,
        cell(WAIT),
        gpu=100,
    ),
    Session(
        "jupyter-training-in-a-thread",
        "jupyterlab",
        "A thread trains; the kernel itself is idle.",
        KEPT,
        cell(THREAD),
        gpu=100,
    ),
    Session(
        "jupyter-working-thread",
        "jupyterlab",
        "A cell has returned; its thread works on one core now and then.",
        KEPT,
        cell(WORKING_THREAD),
    ),
    Session(
        "jupyter-working-task",
        "jupyterlab",
        "A cell has returned; its asyncio task works on one core now and then.",
        KEPT,
        cell(WORKING_TASK),
    ),
    Session(
        "jupyter-writing-thread",
        "jupyterlab",
        "A cell has returned; its thread writes 5 kB/s to a file.",
        KEPT,
        cell(DOWNLOAD),
    ),
    Session(
        "jupyter-data-loading",
        "jupyterlab",
        "Processes of a cell load data; the GPU is at 0 %.",
        KEPT,
        cell(DATA_LOADING),
    ),
    Session("jupyter-waiting-cell", "jupyterlab", "A cell waits for something far away.", KEPT, cell(WAIT)),
    Session("jupyter-awaiting-cell", "jupyterlab", "A cell awaits something.", KEPT, cell(AWAIT)),
    Session("jupyter-input", "jupyterlab", "A cell waits for input().", KEPT, cell("input('name? ')")),
    Session("jupyter-pdb", "jupyterlab", "A cell stands in pdb.", KEPT, cell(PDB)),
    Session(
        "jupyter-breakpoint",
        "jupyterlab",
        "JupyterLab's debugger stands at a breakpoint.",
        KEPT,
        acts.stands_at_a_breakpoint,
    ),
    Session(
        "jupyter-cell-nohup",
        "jupyterlab",
        "A cell has started a command with nohup.",
        WAITS,
        cell("import os; os.system('nohup sleep 9999 >/dev/null 2>&1 &')"),
    ),
    Session(
        "jupyter-cell-popen", "jupyterlab", "A cell has started a program and goes on.", WAITS, cell(POPEN)
    ),
    Session(
        "jupyter-small-cells",
        "jupyterlab",
        "Somebody runs a small cell every 20 s.",
        KEPT,
        acts.cells("1 + 1", 20, 10),
        goes_on=True,
    ),
    Session(
        "jupyter-abandoned-kernel",
        "jupyterlab",
        "A kernel was started over REST; nobody has connected.",
        STOPPED,
        acts.abandoned_kernel,
    ),
)
TERMINALS = (
    Session("terminal-prompt", "jupyterlab", "A terminal is open at its prompt.", STOPPED, terminal("ls")),
    Session(
        "terminal-job-has-ended",
        "jupyterlab",
        "A command has run for 40 s and ended.",
        STOPPED,
        terminal("sleep 40"),
    ),
    Session("terminal-sleep", "jupyterlab", "`sleep` runs in a terminal.", WAITS, terminal("sleep 9999")),
    Session(
        "terminal-background", "jupyterlab", "`sleep &` runs in a terminal.", WAITS, terminal("sleep 9999 &")
    ),
    Session(
        "terminal-nohup",
        "jupyterlab",
        "`nohup` runs, and its terminal is closed.",
        WAITS,
        closed_terminal(NOHUP),
    ),
    Session(
        "terminal-setsid",
        "jupyterlab",
        "A command has left its terminal by `setsid`.",
        WAITS,
        closed_terminal("setsid -f sleep 9999"),
    ),
    Session(
        "terminal-disown",
        "jupyterlab",
        "A command was disowned, and its shell has ended.",
        WAITS,
        terminal("sleep 9999 & disown; exit"),
    ),
    Session(
        "terminal-tmux",
        "jupyterlab",
        "A command runs in tmux, which is detached.",
        WAITS,
        terminal("tmux new -d -s work 'sleep 9999'"),
    ),
    Session(
        "terminal-tmux-closed",
        "jupyterlab",
        "The same, and the terminal is closed.",
        WAITS,
        closed_terminal("tmux new -d -s work 'sleep 9999'"),
    ),
    Session(
        "terminal-pdb",
        "jupyterlab",
        "A program stands at a breakpoint of pdb.",
        WAITS,
        terminal("echo 'x = 1' > p.py", "python3 -m pdb p.py"),
    ),
    Session(
        "terminal-server",
        "jupyterlab",
        "A program waits for connections.",
        WAITS,
        terminal("python3 -m http.server -b 127.0.0.1 8899"),
    ),
    Session(
        "terminal-training",
        "jupyterlab",
        "A script trains on the GPU and prints nothing.",
        KEPT,
        terminal(TRAIN),
        gpu=100,
    ),
    Session(
        "terminal-typing",
        "jupyterlab",
        "Somebody types `ls` every 20 s.",
        KEPT,
        acts.typed_again_and_again,
        goes_on=True,
    ),
    Session(
        "terminal-polling",
        "jupyterlab",
        "A loop looks for a file every second.",
        KEPT,
        terminal("until test -e done; do sleep 1; done"),
    ),
    Session(
        "terminal-infinity",
        "jupyterlab",
        "`sleep infinity &` was left running, to keep the workspace.",
        STOPPED,
        terminal("sleep infinity &"),
    ),
    Session("terminal-top", "jupyterlab", "`top` was left open.", STOPPED, terminal("top")),
    Session(
        "terminal-editor",
        "jupyterlab",
        "An interpreter was left open at its prompt.",
        WAITS,
        terminal("python3 -i -c 1"),
    ),
    Session(
        "terminal-empty-tmux",
        "jupyterlab",
        "tmux was left running with nothing but a shell.",
        STOPPED,
        terminal("tmux new -d -s work"),
    ),
)
TERMINALS += (
    Session(
        "terminal-watch",
        "jupyterlab",
        "`watch` repeats a monitor every second.",
        STOPPED,
        terminal("watch -n 1 top -b -n 1"),
    ),
    Session(
        "terminal-unused-server",
        "jupyterlab",
        "A web server polls 20 times a second; nobody calls it.",
        WAITS,
        terminal(UNUSED_SERVER),
    ),
    Session(
        "jupyter-editing",
        "jupyterlab",
        "Somebody edits a notebook and saves it every 30 s; no cell runs.",
        KEPT,
        acts.edits_a_notebook,
        goes_on=True,
    ),
)
TROUBLE = (
    Session(
        "agent-lost-quiet",
        "jupyterlab",
        "The agent is lost; nothing was done.",
        KEPT,
        acts.agent_is_lost(acts.nothing),
    ),
    Session(
        "agent-lost-working",
        "jupyterlab",
        "The agent is lost while `sleep` runs.",
        KEPT,
        acts.agent_is_lost(terminal("sleep 9999")),
    ),
    Session(
        "agent-comes-back",
        "jupyterlab",
        "The agent is silent for 160 s; nothing is done.",
        STOPPED,
        acts.agent_comes_back,
    ),
    Session(
        "forged-without-a-token",
        "jupyterlab",
        "Others send idle heartbeats without its token, while `sleep` runs.",
        KEPT,
        acts.forged(acts.IDLE_FIGURES, 401, token="forged"),
        goes_on=True,
    ),
    Session(
        "forged-nonsense",
        "jupyterlab",
        "Somebody with its agent's token sends figures that cannot be, while `sleep` runs.",
        KEPT,
        acts.forged({"jobs": -1, "cpu_seconds": "x", "kernels": [], "terminals": 7}, 200),
        goes_on=True,
    ),
    Session(
        "forged-work",
        "jupyterlab",
        "Somebody with its agent's token sends heartbeats that tell of work.",
        FALSELY_KEPT,
        acts.pretends_to_work,
        goes_on=True,
    ),
)
MARIMO = (
    Session(
        "marimo-nobody-came", "marimo", "It was started, and nobody has opened it.", STOPPED, acts.nothing
    ),
    Session("marimo-open-tab", "marimo", "marimo is open in a tab.", STOPPED, acts.only_a_tab, browser=True),
    Session(
        "marimo-quiet-notebook",
        "marimo",
        "A cell has run; the notebook waits.",
        STOPPED,
        marimo_cell("1 + 1"),
    ),
    Session(
        "marimo-terminal-prompt",
        "marimo",
        "marimo's terminal is open at its prompt.",
        STOPPED,
        marimo_terminal("ls"),
    ),
    Session(
        "marimo-training",
        "marimo",
        "A cell trains on the GPU and prints nothing.",
        KEPT,
        marimo_cell(WAIT),
        gpu=100,
    ),
    Session(
        "marimo-data-loading",
        "marimo",
        "Processes of a cell load data; the GPU is at 0 %.",
        KEPT,
        marimo_cell(COMPUTE),
    ),
    Session("marimo-waiting-cell", "marimo", "A cell waits for something far away.", KEPT, marimo_cell(WAIT)),
    Session("marimo-awaiting-cell", "marimo", "A cell awaits something.", KEPT, marimo_cell(AWAIT)),
    Session("marimo-input", "marimo", "A cell waits for input().", KEPT, marimo_cell("input('name? ')")),
    Session("marimo-pdb", "marimo", "A cell stands in pdb.", KEPT, marimo_cell(PDB)),
    Session("marimo-popen", "marimo", "A cell has started a program and goes on.", WAITS, marimo_cell(POPEN)),
    Session(
        "marimo-small-cells",
        "marimo",
        "Somebody runs a small cell every 20 s.",
        KEPT,
        acts.marimo_small_cells,
        goes_on=True,
    ),
    Session(
        "marimo-terminal-sleep",
        "marimo",
        "`sleep` runs in marimo's terminal.",
        WAITS,
        marimo_terminal("sleep 9999"),
    ),
)
VSCODE = (
    Session(
        "vscode-nobody-came", "vscode", "It was started, and nobody has opened it.", STOPPED, acts.nothing
    ),
    Session("vscode-open-tab", "vscode", "VS Code is open in a tab.", STOPPED, acts.only_a_tab, browser=True),
    Session(
        "vscode-terminal-prompt",
        "vscode",
        "Its terminal is open at the prompt.",
        STOPPED,
        vscode_terminal("ls"),
        browser=True,
    ),
    Session(
        "vscode-terminal-sleep",
        "vscode",
        "`sleep` runs in its terminal.",
        WAITS,
        vscode_terminal("sleep 9999"),
        browser=True,
    ),
    Session(
        "vscode-terminal-pdb",
        "vscode",
        "A program stands at a breakpoint of pdb in its terminal.",
        WAITS,
        vscode_terminal("echo 'x = 1' > p.py", "python3 -m pdb p.py"),
        browser=True,
    ),
    Session(
        "vscode-nohup",
        "vscode",
        "A command runs behind its terminal.",
        WAITS,
        vscode_terminal(NOHUP),
        browser=True,
    ),
    Session(
        "vscode-training",
        "vscode",
        "A script trains on the GPU in its terminal.",
        KEPT,
        vscode_terminal(TRAIN),
        gpu=100,
        browser=True,
    ),
)
SESSIONS = (*JUPYTER, *TERMINALS, *TROUBLE, *MARIMO, *VSCODE, *traffic.SESSIONS)


@dataclass(frozen=True)
class Variant:
    """A recorded session received by a portal whose clock was changed by `jump_s` meanwhile."""

    name: str
    base: str
    done: str
    jump_s: int


VARIANTS = (
    Variant(
        "clock-forward-quiet",
        "jupyter-quiet-kernel",
        "The clock is set forward by 3 h; a kernel waits.",
        10_800,
    ),
    Variant(
        "clock-forward-working",
        "terminal-sleep",
        "The clock is set forward by 3 h while `sleep` runs.",
        10_800,
    ),
    Variant("clock-back-quiet", "terminal-prompt", "The clock is set back by 3 h; nothing is done.", -10_800),
    Variant(
        "clock-back-working",
        "jupyter-input",
        "The clock is set back by 3 h; a cell waits for input().",
        -10_800,
    ),
)
BY_NAME = {each.name: each for each in SESSIONS}
