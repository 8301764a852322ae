"""Runs the command line: `python -m dicl_flow`."""

from .cli import run

if __name__ == "__main__":
    run()
