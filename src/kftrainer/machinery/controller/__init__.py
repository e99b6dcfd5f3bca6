"""Controllers: events of watched kinds become requests, and workers reconcile them."""
