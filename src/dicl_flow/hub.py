"""A network as a folder, or a repository, of the Hugging Face hub."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from .config import ModelConfig
from .config.strict import structure
from .errors import InputError
from .estimation.estimator import FlowEstimator, load
from .files import write_files
from .models import LevelFlow, build
from .weights import Weights, check_keys, encode_weights, read_weights, resolve

try:
    from huggingface_hub import ModelCard, PyTorchModelHubMixin, hf_hub_download
except ImportError:
    raise InputError("the hub needs huggingface_hub: pip install 'dicl-flow[hub]'") from None

FILE = "model.safetensors"  # the name that the hub expects

CARD = """# DICL-Flow: optical flow

Estimates where each pixel of one frame is in another, and with what confidence: the network of
*Displacement-Invariant Matching Cost Learning for Accurate Optical Flow Estimation* (Wang et al.,
NeurIPS 2020).

| | |
|---|---|
{facts}

## Use

`pip install 'dicl-flow[hub]'`, then, with the name of this repository for `OWNER/NAME`:

```python
from dicl_flow.hub import HubNetwork

estimator = HubNetwork.from_pretrained("OWNER/NAME").estimator()
result = estimator("frame1.png", "frame2.png")  # flow (H, W, 2) in px, confidence (H, W)
```

`model.safetensors` is a weights file of the package, which every command accepts:
`dicl-flow flow frame1.png frame2.png -o flow.flo -w model.safetensors`.

## Licence

Apache 2.0.
"""


class HubNetwork(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="dicl-flow",
    license="apache-2.0",
    tags=["optical-flow"],
):
    """A network with `save_pretrained`, `push_to_hub` and `from_pretrained`.

    `model.safetensors` is an ordinary weights file, which `dicl_flow.load` accepts;
    `config.json` repeats the config in it.
    """

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.network = build(structure(ModelConfig, config or {}))
        self._source = Weights(self.network.config, {})

    @classmethod
    def from_weights(cls, weights: str | Path | None = None) -> "HubNetwork":
        """Take a packaged name or a .safetensors file; default: the packaged weights."""
        found = read_weights(resolve(weights))
        model = cls(config=asdict(found.config))
        check_keys(found.tensors, model.network)
        model.network.load_state_dict(dict(found.tensors), strict=True)
        model._source = found
        return model.eval()

    def forward(self, image1: Tensor, image2: Tensor) -> list[LevelFlow]:
        """Two (B, 3, H, W) images in [-1, 1] -> the flow of each level, coarsest first."""
        return self.network(image1, image2)

    def estimator(self, *options: Any, **named: Any) -> FlowEstimator:
        """Images in, flow and calibrated confidence out; the options are those of `dicl_flow.load`.

        It has its own copy of the network; this one stays unchanged.
        """
        return load(self._weights(), *options, **named)

    def _weights(self) -> Weights:
        return replace(self._source, tensors=self.network.state_dict())

    def generate_model_card(self, *_: Any, **__: Any) -> ModelCard:
        """Describe these weights and how to use them."""
        cells = {n: " ".join(text.split()).replace("|", "\\|") for n, text in self._facts().items()}
        rows = "\n".join(f"| {name} | {cell} |" for name, cell in cells.items())
        data = self._hub_mixin_info.model_card_data.to_yaml()
        return ModelCard(f"---\n{data}\n---\n\n{CARD.format(facts=rows)}")

    def _facts(self) -> dict[str, str]:
        config, calibration = self.network.config, self._source.calibration
        meaning = "not calibrated"
        if calibration is not None:
            meaning = f"the probability that the flow is right to {calibration.threshold:g} px"
        return {
            "network": f"{config.host}, {len(config.levels)} levels",
            "parameters": f"{sum(p.numel() for p in self.network.parameters()):,}",
            "confidence": meaning,
            **self._source.about,
        }

    def _save_pretrained(self, save_directory: Path) -> None:
        write_files({Path(save_directory) / FILE: encode_weights(self._weights())})

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
