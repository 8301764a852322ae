"""The command `render`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .input_files import find_photos
from .outputs import check_outputs

if TYPE_CHECKING:
    from ..config import RenderConfig


def render(
    photos: Annotated[
        str, typer.Argument(help="Folder of photographs, or 'procedural' for computed textures.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write into.")],
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many pairs.")] = 16,
    size: Annotated[str, typer.Option(help="WIDTHxHEIGHT of a frame.")] = "512x384",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same pairs.")] = 0,
    motion: Annotated[float, typer.Option(help="Multiplies all motion.")] = 1.0,
    kind: Annotated[
        str,
        typer.Option(
            help="layers, or a solid scene: street, motorway, room, corridor, landscape, floating."
        ),
    ] = "layers",
    frames: Annotated[
        int | None, typer.Option(metavar="N", help="One clip of N frames instead of pairs.")
    ] = None,
    stats: Annotated[
        Path | None, typer.Option(metavar="PNG", help="Draw the statistics of the motion.")
    ] = None,
    device: options.Device = "auto",
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Render pairs of frames with exact flow, and a sheet to look at them; or a clip.

    The folder is ready for training: `--data pairs=DIR`. Each pair has NAME_img1.png,
    NAME_img2.png, NAME_flow.flo, and NAME_occ.png, white where a pixel is hidden in frame 2.

    A clip has frames 000.png, their flow to the next frame 000.flo, masks 000_occ.png, and
    tracks.npz: points (P, T, 2) in px and occluded (P, T).

    Examples:

      dicl-flow render ~/Pictures -n 16 -o scenes

      dicl-flow render procedural -n 200 -o scenes --motion 0.3 --stats motion.png

      dicl-flow render ~/Pictures --kind street --frames 24 --motion 0.3 -o clip
    """
    from ..files import encode_image, write_files

    folder = find_photos(photos)
    config = _settings(kind, motion, frames, stats)
    _check_outputs(output, stats, folder)
    frame = options.parse_size("--size", size)

    # torch, which takes seconds: after all that may be missing
    from ..estimation.compute import choose_device
    from ..lab.rendered_folder import write_clip, write_pairs
    from ..render import Clip, Renderer, load_textures

    place = choose_device(device)
    # a scene shows a dozen textures; a few pairs do not need all photographs in memory
    textures = load_textures(folder, place, seed, limit=max(64, 4 * count))
    if frames is not None:
        clip = Clip(config, frame, textures, kind, frames, place, seed)
        written = write_clip(clip, output, options.track(range(frames), "rendering", quiet=quiet))
        summary = {"frames": frames, "size": frame, "seed": seed, "written": [output, *written]}
        options.report(summary, quiet=quiet, as_json=as_json)
        return
    renderer = Renderer(config, frame, textures, place, seed)
    output.mkdir(parents=True, exist_ok=True)
    numbers = options.track(range(count), "rendering", quiet=quiet)
    statistics, sheet = write_pairs(renderer, output, numbers)
    pictures = {output / "sheet.png": encode_image("sheet.png", sheet)}
    if stats is not None:
        from ..pictures.figures import draw_motion

        pictures[stats] = draw_motion(statistics.vectors())
    write_files(pictures)
    summary = {
        "pairs": count,
        "size": frame,
        "seed": seed,
        **statistics.summary(),
        "written": [output, *pictures],
    }
    options.report(summary, quiet=quiet, as_json=as_json)


def _settings(kind: str, motion: float, frames: int | None, stats: Path | None) -> "RenderConfig":
    """Return the settings of the scenes; refuse a clip of layers."""
    from ..config import PLACES, RenderConfig
    from ..errors import InputError, unknown_name

    if kind not in ("layers", *PLACES):
        raise unknown_name("kind of scene", kind, ("layers", *PLACES))
    if frames is not None and kind == "layers":
        raise InputError(f"--frames needs a solid scene: give --kind, one of {', '.join(PLACES)}")
    if frames is not None and frames < 1:
        raise InputError(f"--frames must be at least 1, got {frames}")
    if frames is not None and stats is not None:
        raise InputError("--stats is for pairs; leave it out with --frames")
    config = RenderConfig(motion=motion)
    return config if kind == "layers" else config.only(kind)


def _check_outputs(output: Path, stats: Path | None, photos: Path | None) -> None:
    from ..errors import InputError
    from ..pictures.figures import draw_figure

    inputs = [] if photos is None else [photos, *photos.rglob("*")]
    check_outputs([stats], folders=[output], inputs=inputs)
    if stats is not None:
        if stats.suffix.lower() != ".png":
            raise InputError(f"{stats}: the statistics are drawn as .png")
        draw_figure(1, 1)  # complain now if there is no matplotlib
