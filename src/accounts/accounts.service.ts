import { Injectable, UnprocessableEntityException } from '@nestjs/common';
import { InjectRepository } from '@nestjs/typeorm';
import { FencedWrite, Leased } from 'nestjs-fencing';
import { In, type Repository } from 'typeorm';
import { Account } from './account.entity.js';

export interface TransferOrder {
  /** Chosen by the client: sending an order again under its id never moves the money twice. */
  id: string;
  from: string;
  to: string;
  amountCents: number;
}

export interface TransferReceipt {
  id: string;
  balances: Record<string, string>;
}

@Injectable()
export class AccountsService {
  constructor(@InjectRepository(Account) private readonly accounts: Repository<Account>) {}

  /** Both accounts at once: taken in sorted order, each with its own generation, both guarded in one transaction. */
  @Leased(['account:{0.from}', 'account:{0.to}'])
  transfer(order: TransferOrder): Promise<TransferReceipt> {
    return this.move(order);
  }

  @FencedWrite({ operation: (order: TransferOrder) => `transfer:${order.id}` })
  async move({ id, from, to, amountCents }: TransferOrder): Promise<TransferReceipt> {
    const accounts = await this.accounts.findBy({ id: In([from, to]) });
    const balance = (name: string): bigint => {
      const account = accounts.find((one) => one.id === name);
      if (!account) throw new UnprocessableEntityException('One of the accounts does not exist.');
      return BigInt(account.balanceCents);
    };
    if (balance(from) < amountCents) throw new UnprocessableEntityException('The balance is too low.');
    const balances = {
      [from]: String(balance(from) - BigInt(amountCents)),
      [to]: String(balance(to) + BigInt(amountCents)),
    };
    await this.accounts.save(
      Object.entries(balances).map(([account, balanceCents]) => ({ id: account, balanceCents })),
    );
    return { id, balances };
  }
}
