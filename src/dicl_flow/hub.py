"""A network as a folder, or a repository, of the Hugging Face hub."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from .config import ModelConfig
from .config.strict import structure
from .errors import InputError
from .files import write_files
from .models import LevelFlow, build
from .weights import Weights, check_keys, encode_weights, read_weights, resolve

try:
    from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
except ImportError:
    raise InputError("the hub needs huggingface_hub: pip install 'dicl-flow[hub]'") from None

FILE = "model.safetensors"  # the name that the hub expects


class HubNetwork(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="dicl-flow",
    license="apache-2.0",
    tags=["optical-flow"],
):
    """A network that `save_pretrained`, `push_to_hub` and `from_pretrained` know.

    `model.safetensors` is an ordinary weights file of ours, which `dicl_flow.load` takes;
    `config.json` says what the config inside it says.
    """

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.network = build(structure(ModelConfig, config or {}))
        self._source = Weights(self.network.config, {})

    @classmethod
    def from_weights(cls, weights: str | Path | None = None) -> "HubNetwork":
        """Take a packaged name or a .safetensors file; without either, the packaged default."""
        found = read_weights(resolve(weights))
        model = cls(config=asdict(found.config))
        check_keys(found.tensors, model.network)
        model.network.load_state_dict(dict(found.tensors), strict=True)
        model._source = found
        return model.eval()

    def forward(self, image1: Tensor, image2: Tensor) -> list[LevelFlow]:
        """Two (B, 3, H, W) images in [-1, 1] -> the flow of each level, coarsest first."""
        return self.network(image1, image2)

    def _save_pretrained(self, save_directory: Path) -> None:
        weights = replace(self._source, tensors=self.network.state_dict())
        write_files({Path(save_directory) / FILE: encode_weights(weights)})

    @classmethod
    def _from_pretrained(
        cls, *, model_id: str, config: dict[str, Any] | None = None, **options: Any
    ) -> "HubNetwork":
        local = Path(model_id).is_dir()
        file = Path(model_id) / FILE if local else hf_hub_download(model_id, FILE, **options)
        model = cls.from_weights(file)
        if config is not None and structure(ModelConfig, config) != model.network.config:
            raise InputError(f"{model_id}: config.json is not the config of {FILE}")
        return model
