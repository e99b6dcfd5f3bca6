"""The Torch plugin: torchrun and torchtune."""
