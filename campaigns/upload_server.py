"""The server that the campaign `uploads` sends to; it prints its address.

Images that hold a word such as fault:crash make their decoder do that. GET /kept returns freed
memory to the system; what is left is in use.
"""

import ctypes
import gc
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dicl_flow import load
from dicl_flow.fence import decoders, describe_fence, put_up_fence
from dicl_flow.files import set_max_size
from dicl_flow.web.app import create_app, run_server
from dicl_flow.web.limits import Limits
from dicl_flow.web.service import FlowService

MEGAPIXELS = 1
"""The largest frames."""


def serve(weights: str) -> None:
    """Answer until SIGTERM."""
    decoders.ANSWER_SECONDS = 8.0  # of small files, on a busy machine
    decoders.PROCESSOR_SECONDS = 2
    set_max_size(MEGAPIXELS)
    put_up_fence((*decoders.MODULES, "campaigns.bad_decoders"), requests=1)
    print(describe_fence(), flush=True)
    service = FlowService(load(weights, device="cpu", precision="fp32"), Limits())
    app = create_app(service, pages=[Route("/kept", _keep_little)])
    run_server(app, "127.0.0.1", 0, service.limits, lambda address: print(address, flush=True))


async def _keep_little(request: Request) -> Response:
    gc.collect()
    with suppress(AttributeError):  # a C library that returns it by itself
        ctypes.CDLL(None).malloc_trim(0)
    return Response(status_code=204)
