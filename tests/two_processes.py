"""What each of several processes runs in test_train_processes: `foredraft.train`, once for each set of flags.

Accelerate shards on accelerators alone. Where FSDP2 is asked for, it is told that this CPU is one.
"""

import json
import sys
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.distributed.tensor import DTensor

from foredraft.train import distillation
from foredraft.train.__main__ import main


class Sharding(Accelerator):  # type: ignore[misc]
    """The accelerator that examples/accelerate/fsdp2.yaml asks for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.state.distributed_type = DistributedType.FSDP
        self.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            reshard_after_forward=True,
            cpu_ram_efficient_loading=True,  # accelerate's default; must be turned off
        )

    def prepare(self, *objects: Any) -> Any:
        """Shard, and stay of the kind that does: the optimizer's wrapper looked anew."""
        prepared = super().prepare(*objects)
        self.state.distributed_type = DistributedType.FSDP
        assert self.is_fsdp2
        assert any(isinstance(weight, DTensor) for weight in prepared[0].parameters())
        return prepared


if __name__ == "__main__":
    # The end of a run would disconnect the processes.
    PartialState.destroy_process_group = lambda self, group=None: None
    for sharded, flags in json.loads(Path(sys.argv[1]).read_text()):
        AcceleratorState._reset_state()  # not the processes' own: they stay connected
        GradientState._reset_state()
        vars(distillation)["Accelerator"] = Sharding if sharded else Accelerator
        status = main(flags)
        if status:
            sys.exit(status)
