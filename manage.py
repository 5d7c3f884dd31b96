#!/usr/bin/env python
"""Command-line entry of the portal."""

from portal.__main__ import main

if __name__ == "__main__":
    main()
