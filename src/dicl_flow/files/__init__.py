"""Reads and writes flow files, disparity and images; files appear whole or not at all."""
# ruff: noqa: F401
# mypy: implicit-reexport

from .atomic import check_folder, check_writable, naming, replacing, temporaries, write_files
from .flow_files import (
    FLOW_SUFFIXES,
    check_flow_name,
    decode_arrays,
    decode_flow,
    decode_npy,
    encode_arrays,
    encode_flow,
    encode_npy,
    flow_suffix,
    read_disparity,
    read_flow,
    read_npy,
    write_flow,
)
from .images import check_unit_range, decode_image, encode_image, read_image, to_integers, to_uint8
from .plates import AS_USUAL, Plate, Reading, decode_plate, encode_plate, read_plate, read_seen
from .reading import Array, check_file, max_size, read_bytes, read_stream, set_max_size
from .truths import read_truth
