"""Values and files that containers get from the API: fields of the pod, ConfigMaps, Secrets."""
