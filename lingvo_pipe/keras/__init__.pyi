from .pipelined_model import PipelinedModel
