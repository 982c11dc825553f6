"""Plans by constraint programming, and the node orders and the estimator of AccaSim."""
