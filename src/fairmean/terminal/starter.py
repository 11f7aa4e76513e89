"""The commented starter config that 'fairmean new' writes: the defaults, spelled out."""

TEXT = """\
# fairmean run this.toml        any key can be overridden: fairmean run this.toml train.rounds=20
seed = 1                        # everything random follows from it
theory = false                  # true: measure what the paper's theorems speak of, for 'fairmean check'

[data]
name = "fashion-mnist-mini"     # fashion-mnist, cifar10, your.npz, a folder of .npy, or module:function

[partition]
name = "dirichlet"              # iid, shards, given (client ids come with the data)
alpha = 0.5                     # small: clients differ much; large: nearly iid
clients = 10
# seed = 1                      # the partition's own seed; left out, it follows seed
# min_size = 10                 # dirichlet: samples a client has at least
# shards_per_client = 2         # shards

[attack]
name = "pairwise"               # none, random, random_class, targeted, furthest
clients = 2                     # so many poisoned clients (the last ones), or their ids: [8, 9]
# fraction = 0.2                # instead of a count
# pick = "random"               # which ones, for a count or fraction; the default is "last"
# source = 0                    # targeted: class source becomes class target
# target = 1
rho = 1.0                       # fraction of a poisoned client's samples that is relabelled

[model]
name = "auto"                   # mlp, cnn, linear, or module:factory; auto is the paper's choice for the data

[method]
name = "fairmean"               # fairmean list methods
kappa = 1.0                     # extra weight of a large loss: at most 1 + kappa
tau = 1.0                       # the loss at which half the extra weight is given

[train]
rounds = 100
lr = 0.1
lr_decay = 1.0                  # factor per round
# schedule = "cosine"           # to zero over all rounds, instead
batch = 0                       # samples per client and step; 0: all of them
local_steps = 1                 # with local_lr, if it is not lr
participation = 1.0             # fraction of clients per round
device = "auto"                 # cpu, cuda
memory = 0                      # GiB for per-client gradients, where a rule looks at them; 0: most of the machine's
dtype = "float32"               # float64; tf32, bfloat16: float32 whose large products are faster and less exact

[server]
name = "plain"                  # momentum, adam, yogi: what the server makes of the method's direction
# lr = 0.1                      # the server's step size, if it is not train.lr

[run]
name = "run"                    # results: dir/name/<hash of the config>/
dir = "runs"
eval_every = 0                  # rounds between evaluations; 0: about twenty in all

# Lists here make a comparison: fairmean compare this.toml
# [grid]
# methods = ["mean", "fedavg", "fairmean:kappa=4"]
# attacks = ["none", "pairwise"]
# seeds = [1, 2, 3]
"""
