from .cells.placement import deferred_variables as deferred_variables
from .pipelined_model import PipelinedModel as PipelinedModel
