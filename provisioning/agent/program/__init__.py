"""The agent itself: the process inside every workspace, which sees this folder as /run/berth/agent.

Standard library only, Python 3.9 or newer. `agent.py` is what is started; the other modules are a package
there that no path leads to. What is needed before the app is started is kept small, because people wait for
it: pathlib, contextlib, typing and socket are imported afterwards or not at all.
"""
