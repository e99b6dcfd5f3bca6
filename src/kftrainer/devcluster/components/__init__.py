"""Components of a control plane: command lines, certificates, permissions, start order."""
