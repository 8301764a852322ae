"""The same, and it forbids to filter system calls."""

from no_namespaces import eat  # noqa: F401

from dicl_flow.fence import readers, seal

if readers._inside:
    seal._LIBRARY.prctl = lambda *arguments: -1
