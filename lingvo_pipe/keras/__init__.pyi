from .pipelined_model import PipelinedModel as PipelinedModel
from .placement import deferred_variables as deferred_variables
