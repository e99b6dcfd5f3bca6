"""The Volcano plugin: PodGroups of the Volcano scheduler."""
