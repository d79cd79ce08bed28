"""STAGE: Kafka → files that two zones write and check against each other → raw tables."""
