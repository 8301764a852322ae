"""What is answered about videos: upload, progress, result, removal."""

from dataclasses import replace

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from ..errors import InputError, unknown_name
from ..video import CUTS, video_source
from .jobs import DONE, Job, Jobs, Order, told
from .service import FlowService
from .uploads import Write, read_form, video_container

FORMATS = {
    "mp4": "video/mp4",
    "webm": "video/webm",
    "gif": "image/gif",
    "npy": "application/x-npy",
}
"""What a video is turned into: the media type by the ending of the file."""


async def create_video(request: Request) -> Response:
    """Take a video that waits for its turn."""
    order = _read_order(request)
    service, jobs = _service(request), _jobs(request)
    with service.admission.enter():
        job = jobs.create()
        try:
            await _receive(request, service, jobs, job)
            order = await service.aside(_checked, job, order)
        except BaseException:
            jobs.remove(job)
            raise
    jobs.submit(job, order)
    return JSONResponse(_described(request, job), 202, {"Location": f"/video/{job.id}"})


async def video(request: Request) -> Response:
    """Tell the progress of a video."""
    return JSONResponse(_described(request, _find(request)))


async def video_result(request: Request) -> Response:
    """Return what was made of a video."""
    job = _find(request)
    if job.state != DONE:
        raise HTTPException(409, f"the video is {job.state}; ask again when it is done")
    kind = FORMATS[job.order.format]
    return FileResponse(job.result, media_type=kind, filename=job.result.name)


async def delete_video(request: Request) -> Response:
    """Stop a video and remove its files."""
    await _service(request).aside(_jobs(request).remove, _find(request))
    return Response(status_code=204)


ROUTES = [
    Route("/video", create_video, methods=["POST"]),
    Route("/video/{id}", video, methods=["GET"]),
    Route("/video/{id}", delete_video, methods=["DELETE"]),
    Route("/video/{id}/result", video_result, methods=["GET"]),
]


def _service(request: Request) -> FlowService:
    service: FlowService = request.app.state.service
    return service


def _jobs(request: Request) -> Jobs:
    jobs: Jobs = request.app.state.jobs
    return jobs


def _find(request: Request) -> Job:
    job = _jobs(request).find(request.path_params["id"])
    if job is None:
        raise HTTPException(404, "there is no such video, or its time is over")
    return job


def _described(request: Request, job: Job) -> dict[str, object]:
    return job.described(_service(request).limits.keep)


def _read_order(request: Request) -> Order:
    query = request.query_params
    order = Order(query.get("format", "mp4"), query.get("show"), query.get("cuts", "estimate"))
    if order.format not in FORMATS:
        raise HTTPException(400, str(unknown_name("format", order.format, FORMATS)))
    if order.cuts not in CUTS:
        raise HTTPException(400, str(unknown_name("cuts", order.cuts, CUTS)))
    return order


async def _receive(request: Request, service: FlowService, jobs: Jobs, job: Job) -> None:
    """Store the upload in the folder of the job."""
    limits = service.limits
    with job.source.open("wb") as file:

        def write(data: bytes) -> None:
            if jobs.used() + len(data) > limits.disk:
                raise HTTPException(507, "the disk space for videos is full; delete some")
            file.write(data)

        def write_to(name: str) -> Write:
            if name != "video" or file.tell():
                raise HTTPException(400, f"expected one field, video, got {name!r}")
            return write

        await read_form(request, write_to, most=limits.max_video, timeout=limits.timeout)


def _checked(job: Job, order: Order) -> Order:
    """Refuse, before it waits for its turn, what cannot be estimated or written."""
    with job.source.open("rb") as file:
        container = video_container(file.read(32))
    try:
        order.outputs(job.folder)
        video_source(job.source, container)
    except InputError as error:
        raise HTTPException(400, told(error, job)) from None
    return replace(order, container=container)
