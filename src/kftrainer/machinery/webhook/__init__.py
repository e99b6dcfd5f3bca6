"""HTTP servers and admission webhooks: connections, limits per client, AdmissionReview.

A webhook's rules are a `Validator`; those of this project are in `kftrainer.webhooks`.
"""
