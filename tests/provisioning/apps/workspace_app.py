"""The app of the contract suite: a tiny HTTP server with several kinds of misbehavior.

Run as `python3 -c SOURCE KIND PORT HOME TAG`. Each start adds a line to `HOME/starts-TAG`, so that a test can
count real starts, and writes two lines to standard output. KIND is one of

- good: answers at once
- slow: answers after a second
- never: listens on nothing
- bad: exits with status 3 at once
- stubborn: answers, and ignores SIGTERM
"""

import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

kind, port, home, tag = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = tag.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


if kind == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with Path(home, "starts-" + tag).open("a") as marks:
    marks.write(str(os.getpid()) + "\n")
print("first line of", tag, flush=True)
print("app", kind, "of", tag, flush=True)
if kind == "bad":
    sys.exit(3)
if kind == "never":
    while True:
        signal.pause()
if kind == "slow":
    time.sleep(1)
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
