"""Resources of pods: requests, limits, devices, quantities and LimitRange defaults. Pure."""
