"""Running training code: `amplint verify` and `amplint trace`.

Everything that runs somebody's script is here, and the linter imports none of it. `simulated_cuda` lets an
unmodified CUDA script run on the CPU under CUDA autocast's own cast policy; `watcher` decides whether a run went
wrong and `tracer` where; `child` is the process that a script runs in, `process` its owner; `verify` and `report`
make the table that a user sees. Only modules that run inside the child import torch.
"""
