"""The loops of a pipeline, one per device, which run the operations of stages."""
