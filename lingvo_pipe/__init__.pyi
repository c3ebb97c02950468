from . import base_layer, gpipe, input, keras, layers, models, py_utils, testing, tshape
from .hyperparams import InstantiableParams, Params
from .layers.core.base_layer import BaseLayer
from .layers.core.forward_context import ForwardContext, current_context
from .layers.core.weights import WeightInit, WeightParams
from .nested_map import NestedMap
from .pipeline.devices.stage_devices import initialize_devices
from .pipeline.pipelining_layer import PipeliningLayer
from .planner.measured.resolve_pipeline import resolve_pipeline
from .runs import Plan, Run, evaluate, plan, train
from .serving.trained_model import TrainedModel, load
from .training.optim.keras_optimizer import OptimizerParams, ScheduleParams
from .training.task.base_task import BaseTask
from .training.task.single_task_model_params import (
    SingleTaskModelParams,
    register_model,
)
