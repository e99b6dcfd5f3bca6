"""The MPI plugin: hostfile, SSH keys and the environment of launcher and nodes."""
