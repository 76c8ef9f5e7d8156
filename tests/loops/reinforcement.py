# %% PPO: epochs over minibatches within updates
import torch

for update in range(1, num_updates + 1):
    for step in range(num_steps):
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
        next_obs, reward, done, infos = envs.step(action.cpu().numpy())
    with torch.no_grad():
        for t in reversed(range(num_steps)):
            advantages[t] = lastgaelam = rewards[t] + gamma * lastgaelam
    for epoch in range(update_epochs):
        for start in range(0, batch_size, minibatch_size):  # tcmon: train
            loss = pg_loss - ent_coef * entropy_loss + v_loss * vf_coef
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if target_kl is not None and approx_kl > target_kl:
            break

# %% DQN: acting and learning in one loop
import torch

for global_step in range(total_timesteps):  # tcmon: train
    action = q_network(obs).argmax()
    next_obs, reward, terminated, truncated, info = env.step(action)
    if global_step > learning_starts and global_step % train_frequency == 0:
        data = rb.sample(batch_size)
        loss = F.mse_loss(td_target, old_val)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for target_param, param in zip(target.parameters(), q_network.parameters()):
            target_param.data.copy_(tau * param.data + (1.0 - tau) * target_param.data)

# %% DQN of the tutorials: a function that optimizes, called in an episode
import torch


def optimize_model():
    if len(memory) < BATCH_SIZE:
        return
    loss = criterion(state_action_values, expected)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()


for i_episode in range(num_episodes):
    state, info = env.reset()
    for t in count():  # tcmon: train
        action = select_action(state)
        observation, reward, terminated, truncated, _ = env.step(action.item())
        memory.push(state, action, observation, reward)
        optimize_model()
        if terminated or truncated:
            break

# %% SAC: an update function with several optimizers, several updates each time
import torch


def sac(env):
    def update(data):
        q_optimizer.zero_grad()
        compute_loss_q(data).backward()
        q_optimizer.step()
        pi_optimizer.zero_grad()
        compute_loss_pi(data).backward()
        pi_optimizer.step()

    for t in range(total_steps):
        o2, r, d, _ = env.step(a)
        if t >= update_after and t % update_every == 0:
            for j in range(update_every):  # tcmon: train
                update(replay.sample_batch(64))


# %% REINFORCE: one update an episode
import torch


def finish_episode():
    returns = []
    for r in policy.rewards[::-1]:
        returns.insert(0, r)
    policy_loss = torch.cat(losses).sum()
    optimizer.zero_grad()
    policy_loss.backward()
    optimizer.step()


def main():
    for i_episode in count(1):  # tcmon: train
        state, _ = env.reset()
        for t in range(1, 10000):
            action = select_action(state)
            state, reward, done, _, _ = env.step(action)
            if done:
                break
        finish_episode()


# %% acting only, with a simulator that steps
import torch

policy.load_state_dict(torch.load("policy.pt"))
for episode in range(5):
    obs = environment.reset()
    done = False
    while not done:
        obs, reward, done, _ = environment.step(policy(obs))
        sim.step()
        world.step()
