from .pipelined_model import PipelinedModel
from .placement import deferred_variables
