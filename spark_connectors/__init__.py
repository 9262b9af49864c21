"""The home of the Spark data source for rqttl; this release ships the package empty."""
