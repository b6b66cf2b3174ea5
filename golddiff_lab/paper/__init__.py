"""The paper's tables and figures, one module each, with our numbers beside the paper's."""
