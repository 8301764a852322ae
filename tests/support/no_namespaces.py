"""Imported by the template of a fence: a machine that forbids namespaces, as many containers do."""

import os
import tempfile

import numpy as np

from dicl_flow.fence import fenced, readers, seal


def refuse(*arguments, **named):
    """Do nothing."""
    raise PermissionError


@fenced(lambda: 2**20)
def eat():
    """Take more memory than any machine has."""
    return np.ones(2**40, np.uint8)


if readers._inside:
    os.chroot = refuse
    tempfile.mkdtemp = refuse
    seal._LIBRARY.unshare = lambda flags: -1
