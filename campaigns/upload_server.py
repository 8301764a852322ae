"""The server that the campaign `uploads` sends to; it prints its address.

Images that hold a word such as fault:crash make their decoder do that.
"""

from dicl_flow import load
from dicl_flow.fence import describe_fence, put_up_fence, readers
from dicl_flow.files import set_max_size
from dicl_flow.web.app import create_app, run_server
from dicl_flow.web.limits import Limits
from dicl_flow.web.service import FlowService


def serve(weights: str) -> None:
    """Answer until SIGTERM."""
    readers.ANSWER_SECONDS, readers.PROCESSOR_SECONDS = 4.0, 2  # of small files, on a busy machine
    set_max_size(1)
    put_up_fence((*readers.MODULES, "campaigns.bad_decoders"), requests=1)
    print(describe_fence(), flush=True)
    service = FlowService(load(weights, device="cpu", precision="fp32"), Limits())
    app = create_app(service)
    run_server(app, "127.0.0.1", 0, service.limits, lambda address: print(address, flush=True))
