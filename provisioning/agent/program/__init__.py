"""The agent: a process inside every workspace, which sees this folder as /run/berth/agent.

Standard library only, Python 3.9 or newer. `agent.py` is the entry point; the other modules form a package
outside the import path. Code that runs before the app starts is kept small, because users wait for it:
pathlib, contextlib, typing and socket are imported later or not at all. So imports inside functions here need
no comment of their own: the app does not wait for their modules.
"""
