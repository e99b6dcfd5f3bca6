"""The kubelet of process nodes: registers nodes, runs pods in the sandbox, reports their status."""
