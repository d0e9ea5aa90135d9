"""Files: atomic writes, sealed manifests, run directories, models, pickles that never run."""
