"""What one worker is told at its start; built once from settings, immutable after."""

import math
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """One worker serves one device. Costs are padded-token equivalents."""

    worker_id: str
    data: Path
    pool: str = "default"
    device: str = "cpu"  # a torch device string, already resolved
    memory_bytes: int = 8 << 30  # what models may take on the device, all engines together
    host_bytes: int = 0  # host memory for models that left the device; 0: they are loaded from their files again
    models_folder: Path | None = None  # operator's weights, <folder>/<org>/<name>
    bundles_folder: Path | None = None  # environments of bundles; None: `bundles` in `data`
    offline: bool = False  # never touch the network
    threads: int = 2  # for forwards on a CPU
    budget: int = 4096  # cost per batch where the catalog names none and nothing is learned yet
    target_s: float = 0.25  # longest forward the learned budget aims at
    depth: int = 1  # batches at the engine at once: two on a GPU hide the launch, one on a CPU
    loads_at_once: int = 2
    quantum_s: float = 2.0  # a loaded model with backlog keeps its place at least this long
    idle_unload_s: float = math.inf  # a model that nobody used for so long leaves the device
    hang_s: float = 120.0  # a forward that takes longer than this is given up and its engine replaced
    load_hang_s: float = 900.0  # a load that takes longer is given up, and its engine replaced
    load_cooldown_s: float = 30.0  # first wait after a failed load; doubles up to half an hour

    @property
    def is_gpu(self) -> bool:
        return self.device != "cpu"
