"""Save tiny state dicts with `torch.save`, in both formats of its files.

    python tests/golden/make_torch_files.py     # with torch

PyTorch 2.13 wrote torch_file.bin, and torch_file_legacy.bin in the format before PyTorch 1.6.
`tests/hf/test_torch_files.py` has the same numbers.
"""

import collections
import pathlib

import torch

HERE = pathlib.Path(__file__).parent
count = torch.arange(12, dtype=torch.float32)
state = collections.OrderedDict(
    {
        "matrix": torch.nn.Parameter(count.reshape(3, 4)),
        "transposed": count.reshape(3, 4).T,  # strides, and the storage of another tensor
        "part": count[5:9],
        "half": torch.tensor([0.5, -2.0], dtype=torch.float16),
        "brain": torch.tensor([1.5, -3.0], dtype=torch.bfloat16),
        "position_ids": torch.arange(3)[None],
        "scalar": torch.tensor(7.0, dtype=torch.float64),
    }
)
state._metadata = collections.OrderedDict({"": {"version": 1}})  # as `Module.state_dict` has it
torch.save(state, HERE / "torch_file.bin")
torch.save(state, HERE / "torch_file_legacy.bin", _use_new_zipfile_serialization=False)
