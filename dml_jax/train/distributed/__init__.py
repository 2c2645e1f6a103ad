"""Several devices and processes: mesh, process group, signals."""
