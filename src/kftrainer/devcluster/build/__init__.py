"""The programs and manifests of a control plane: pinned Go modules, built and cached."""
