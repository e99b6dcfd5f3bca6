"""The network of the pods: bridge, DNS, Services and probes."""
