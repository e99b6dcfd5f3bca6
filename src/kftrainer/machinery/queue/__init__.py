"""Work queues: `core` decides what is next, `workqueue` waits for it, `backoff` delays retries."""
