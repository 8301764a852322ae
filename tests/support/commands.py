"""Every command of the command line, by the words that call it."""

import typer

from dicl_flow.cli import app


def _list_commands(group, words=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _list_commands(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


COMMANDS = dict(_list_commands(typer.main.get_command(app)))
