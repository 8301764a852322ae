"""Flow files and images: bytes on disk to arrays in memory and back."""

from .atomic import check_folder, check_writable, read_bytes, replacing, write_files
from .disparity import read_disparity
from .flow_files import FLOW_SUFFIXES, encode_flow, read_flow, write_flow
from .images import check_image_name, encode_image, read_image, to_integers, to_uint8

__all__ = [
    "FLOW_SUFFIXES",
    "check_folder",
    "check_image_name",
    "check_writable",
    "encode_flow",
    "encode_image",
    "read_bytes",
    "read_disparity",
    "read_flow",
    "read_image",
    "replacing",
    "to_integers",
    "to_uint8",
    "write_files",
    "write_flow",
]
