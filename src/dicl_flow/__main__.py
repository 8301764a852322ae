"""Runs the command line: `python -m dicl_flow`."""

from .cli import main

if __name__ == "__main__":
    main()
