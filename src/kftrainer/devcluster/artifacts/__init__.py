"""The programs and manifests of a control plane, built from pinned Go modules and cached."""
