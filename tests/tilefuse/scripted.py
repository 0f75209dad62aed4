"""Writes a module as a TorchScript file for the tests."""
import os
import tempfile
import zipfile

import torch


def save(module, path):
    """Scripts a module for evaluation and saves it without the debug information, which is most of it."""
    with tempfile.TemporaryDirectory() as folder:
        whole = os.path.join(folder, "large.pt")
        torch.jit.script(module.eval()).save(whole)
        with zipfile.ZipFile(whole) as large, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as small:
            for name in large.namelist():
                if not name.endswith(".debug_pkl"):
                    small.writestr(name, large.read(name))
