"""The components of a control plane: their command lines, certificates, access and start order."""
